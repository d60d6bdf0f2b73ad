"""The version, as CMakeLists.txt has it (tests/python/test_base.py)."""

VERSION = "0.1.0"
