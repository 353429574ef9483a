"""What the commands share: progress, threads, quick imports, and amounts as people read them."""
