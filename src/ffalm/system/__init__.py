"""What the operating system offers: files, locks, memory, devices, processes. Nothing here knows of learning."""
