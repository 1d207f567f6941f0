"""Builds the operators with the compiler of the machine."""

from setuptools import setup
from torch.utils.cpp_extension import BuildExtension, CppExtension

LEVELS = ("portable", "avx2", "avx2_vnni", "avx512", "avx512_vnni")
SOURCES = ("operators", *(f"level_{name}" for name in LEVELS))
STABLE_SINCE = "0x020B000000000000"
"""torch 2.11, the oldest version on which the build runs."""

setup(
    ext_modules=[
        CppExtension(
            "nunatak_ops.native",
            [f"src/{name}.cpp" for name in SOURCES],
            depends=["src/work.h", "src/kernels.h", "src/integers.h"],
            extra_compile_args=[
                "-O3",
                "-g0",
                "-std=c++20",
                "-fvisibility=hidden",
                "-DPy_LIMITED_API=0x030B0000",
                f"-DTORCH_TARGET_VERSION={STABLE_SINCE}",
            ],
            py_limited_api=True,
        )
    ],
    cmdclass={"build_ext": BuildExtension.with_options(use_ninja=False)},
    options={"bdist_wheel": {"py_limited_api": "cp311"}},
)
