"""The process that holds user code: receives batches, keeps their leases, acks what handlers did."""
