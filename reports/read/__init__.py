"""Reading what runs left: plans, records, measurements, outputs, and results.jsonl."""
