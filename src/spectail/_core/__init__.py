"""What CAR, the losses and the metrics are made of; nothing here is for users to import."""
