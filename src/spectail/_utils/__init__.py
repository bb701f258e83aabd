"""What every room needs: whole files, and torchvision beside a torch of another build."""
