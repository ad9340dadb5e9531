"""One thread: these tensors are tiny, and several test workers share the cores."""

import torch

torch.set_num_threads(1)
