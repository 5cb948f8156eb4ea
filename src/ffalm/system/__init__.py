"""The operating system: files, locks, memory, devices and processes. Nothing here is about learning."""
