"""Reading the files that runs left: plans, records, measurements, outputs, and results.jsonl."""
