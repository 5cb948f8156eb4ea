"""Running a federation on real machines: folders, keys, certificates, Flower's processes and their status."""
