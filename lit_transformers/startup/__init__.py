"""The preparations of a process before it imports anything heavy."""
