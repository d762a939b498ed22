"""The native part, which is optional: without a compiler the package is installed without it, and reads in Python."""

from setuptools import Extension, setup

setup(
    ext_modules=[
        Extension(
            "locust_llm.client.native._reader",
            ["locust_llm/client/native/_reader.c", "locust_llm/client/native/_tls.c"],
            depends=["locust_llm/client/native/_tls.h"],
            libraries=["dl"],
            define_macros=[("Py_LIMITED_API", "0x030B0000")],
            extra_compile_args=["-O2", "-pthread"],
            extra_link_args=["-pthread"],
            py_limited_api=True,
            optional=True,
        )
    ],
    options={"bdist_wheel": {"py_limited_api": "cp311"}},
)
