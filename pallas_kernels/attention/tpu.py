"""The TPU kernels of all attention operations."""

from __future__ import annotations

from pallas_kernels.attention.tpu_pages import decode_pages, prefill_pages
from pallas_kernels.attention.tpu_prefill import prefill
from pallas_kernels.attention.tpu_ring import decode_ring
from pallas_kernels.attention.tpu_store import store_entries

__all__ = ["decode_pages", "decode_ring", "prefill", "prefill_pages", "store_entries"]
