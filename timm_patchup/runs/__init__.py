"""What training, evaluation and the Hub share: the run folder, checkpoints, weights, loading, the accelerator."""
