"""One thread for every test: results repeat, and small matrices are faster. SPECTAIL_THREADS asks for more."""

import os

import torch

torch.set_num_threads(int(os.environ.get("SPECTAIL_THREADS", "1")))
