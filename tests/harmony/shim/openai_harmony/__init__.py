from harmony import *  # noqa: F403
