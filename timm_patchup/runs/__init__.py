"""What training, evaluation and Hub share: run folders, checkpoints, weights, loading, metrics, the accelerator."""
