"""The engine measured: its throughput, and what each of its devices against waste is worth."""
