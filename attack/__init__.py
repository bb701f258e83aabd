"""An attack on spectail: generated bad input, kills, damage, hostile files, two writers, full disks. See `__main__`."""
