"""Who gets how many workers: allocation policies, placement, restart cost."""
