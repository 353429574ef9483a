"""What a process does before it imports anything heavy."""
