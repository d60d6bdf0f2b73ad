# The kernels and their tests for aarch64, built on another machine and run by qemu-user:
#
#   cmake --preset aarch64 && cmake --build --preset aarch64 && ctest --preset aarch64
#
# Debian: gcc-aarch64-linux-gnu libc6-dev-arm64-cross qemu-user. What is built is in CMakeLists.txt.
set(CMAKE_SYSTEM_NAME Linux)
set(CMAKE_SYSTEM_PROCESSOR aarch64)
set(CMAKE_C_COMPILER aarch64-linux-gnu-gcc)
set(CMAKE_EXE_LINKER_FLAGS_INIT -static) # so the emulator needs no libraries of the target
set(CMAKE_CROSSCOMPILING_EMULATOR qemu-aarch64)
set(CMAKE_FIND_ROOT_PATH_MODE_LIBRARY ONLY)
set(CMAKE_FIND_ROOT_PATH_MODE_INCLUDE ONLY)
