"""`deepspeed.launcher.runner`: the name of a file that launchers read; torchrun is the launcher here."""

DEEPSPEED_ENVIRONMENT_NAME = ".deepspeed_env"
