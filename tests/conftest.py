"""One thread for every test: results repeat, and small matrices are faster."""

import torch

torch.set_num_threads(1)
