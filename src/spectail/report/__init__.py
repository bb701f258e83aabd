"""Figures and tables that people look at."""
