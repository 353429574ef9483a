"""An HTTP server for a trained network: a bounded queue, batches by length, and one process that computes."""
