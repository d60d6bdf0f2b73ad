#!/usr/bin/env python3
"""install.py CC - what a user has after cmake --install: each public header alone, in C11 and in C++17,
and a program that is built with nothing but pkg-config."""
import os
import shutil
import subprocess
import sys
import tempfile

import headers

WARN = ["-Wall", "-Wextra", "-pedantic", "-Wundef", "-Werror"]

PROGRAM = """
#include <stdio.h>
#include <zc_config.h>
#include <zc_safetensors.h>
#include <zc_zero.h>
#include <zclient.h>

int main(void)
{
    struct zc_options options = { 0 };
    struct zc_client *c = NULL;
    int rc;

    options.socket = "/tmp/zshard-no-such-socket";
    rc = zc_open(&c, &options);
    puts(zc_error(c));
    zc_close(c);
    return zc_exit_code(rc);
}
"""


def run(args, **more):
    done = subprocess.run(args, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, **more)
    if done.returncode != 0:
        print(f"$ {' '.join(args)}\n{done.stdout}")
    return done


def compilers(cc):
    """(command, language, standard) of those that are there."""
    yield [cc], "c", "c11"
    for cxx in ("g++", "clang++"):
        if shutil.which(cxx):
            yield [cxx], "c++", "c++17"


def check_headers(cc, include):
    wrong = 0
    for header in headers.PUBLIC:
        name = os.path.basename(header)
        if not os.path.exists(os.path.join(include, name)):
            print(f"{name} is not installed")
            wrong += 1
        for command, language, standard in compilers(cc):
            done = run(command + ["-x", language, "-std=" + standard, *WARN, "-fsyntax-only", "-I",
                                  include, "-"],
                       input=f"#include <{name}>\n#include <{name}>\n")
            wrong += done.returncode != 0
    return wrong


def check_program(cc, d, lib):
    """Found by pkg-config, linked, and run against the installed library."""
    env = dict(os.environ, PKG_CONFIG_PATH=os.path.join(lib, "pkgconfig"))
    flags = run(["pkg-config", "--cflags", "--libs", "zclient"], env=env)
    program = os.path.join(d, "program")
    if flags.returncode != 0:
        return 1
    built = run([cc, "-x", "c", *WARN, "-o", program, "-", *flags.stdout.split()], input=PROGRAM)
    if built.returncode != 0:
        return 1
    ran = subprocess.run([program], text=True, stdout=subprocess.PIPE,
                         env=dict(os.environ, LD_LIBRARY_PATH=lib))
    if ran.returncode != 3 or "zshard-no-such-socket" not in ran.stdout:
        print(f"the program ended with {ran.returncode}: {ran.stdout}")
        return 1
    return 0


def main():
    cc, build = sys.argv[1], os.environ["ZSHARD_BUILD"]
    with tempfile.TemporaryDirectory() as d:
        # Only the library's component: programs need not be built.
        done = run(["cmake", "--install", build, "--prefix", os.path.join(d, "p"), "--component",
                    "library"])
        if done.returncode != 0:
            return 1
        found = [root for root, _, files in os.walk(d) if "libzclient.so.0" in files]
        if len(found) != 1:
            print("libzclient.so.0 is not installed")
            return 1
        # The plugin for CUDA devices, if this build has it: the library looks for it there.
        plugin = os.path.join("zshard", "zk_cuda.so")
        if os.path.exists(os.path.join(build, "lib", "zk_cuda.so")) and \
                not os.path.exists(os.path.join(found[0], plugin)):
            print(f"{plugin} is not installed beside libzclient.so.0")
            return 1
        wrong = check_headers(cc, os.path.join(d, "p", "include"))
        if not os.environ.get("ZSHARD_SANITIZE"):
            wrong += check_program(cc, d, found[0])
        return 1 if wrong else 0


sys.exit(main())
