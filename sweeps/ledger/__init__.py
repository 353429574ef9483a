"""Which worker holds which run: the ledger, its storage, locks and records."""
