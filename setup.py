"""The native part, which is optional: without a compiler the package is installed without it, and
reads in Python."""

import os
import platform

from setuptools import Extension, setup
from setuptools.command.build_ext import build_ext
from setuptools.errors import CompileError, LinkError

HARDENED = ["-fstack-protector-strong", "-U_FORTIFY_SOURCE", "-D_FORTIFY_SOURCE=2"]
"""It reads what strangers send: what overruns a buffer all the same ends the process."""
HARDENED_LINK = ["-Wl,-z,relro,-z,now,-z,noexecstack"] if platform.system() == "Linux" else []


class HardenedBuild(build_ext):
    """Compiles without these flags where the compiler does not know them."""

    def build_extension(self, extension):
        compile_args, link_args = extension.extra_compile_args, extension.extra_link_args
        # the sanitizers look at more, and want the calls as they are
        if "-fsanitize" in os.environ.get("CFLAGS", ""):
            super().build_extension(extension)
            return
        try:
            extension.extra_compile_args = compile_args + HARDENED
            extension.extra_link_args = link_args + HARDENED_LINK
            super().build_extension(extension)
        except (CompileError, LinkError):
            extension.extra_compile_args, extension.extra_link_args = compile_args, link_args
            super().build_extension(extension)


setup(
    ext_modules=[
        Extension(
            "locust_llm.client.reader._reader",
            ["locust_llm/client/reader/_reader.c"],
            define_macros=[("Py_LIMITED_API", "0x030B0000")],
            extra_compile_args=["-O2", "-pthread"],
            extra_link_args=["-pthread"],
            py_limited_api=True,
            optional=True,
        )
    ],
    cmdclass={"build_ext": HardenedBuild},
    options={"bdist_wheel": {"py_limited_api": "cp311"}},
)
