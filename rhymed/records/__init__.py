"""What the folders of runs say: samples, logs, comparisons, lists of runs, and copies on shared storage."""
