"""Augmentation across images: boxes, mixing, and what each augmentation method needs beside its method file."""
