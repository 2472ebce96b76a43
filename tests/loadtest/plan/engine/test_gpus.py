"""Accelerators: their names as drivers print them, and their links."""

from __future__ import annotations

import pytest

from loadtest.plan.engine.gpus import find_gpu


@pytest.mark.parametrize(
    ("printed", "name"),
    [
        ("NVIDIA A100-SXM4-40GB", "a100-40"),
        ("NVIDIA A100-SXM4-80GB", "a100"),
        ("NVIDIA A100 80GB PCIe", "a100-pcie"),
        ("NVIDIA A100-PCIE-40GB", "a100-40-pcie"),
        ("NVIDIA H100 80GB HBM3", "h100"),
        ("NVIDIA H100 PCIe", "h100-pcie"),
        ("Tesla V100-SXM2-32GB", "v100"),
        ("Tesla V100-PCIE-32GB", "v100-pcie"),
        ("NVIDIA A800-SXM4-80GB", "a800"),
        ("NVIDIA A800 80GB PCIe", "a800-pcie"),
        ("NVIDIA H800", "h800"),
        ("NVIDIA H800 PCIe", "h800-pcie"),
        ("NVIDIA H100 NVL", "h100-nvl"),
        ("h100-nvl", "h100-nvl"),
        ("NVIDIA H200", "h200"),
        ("NVIDIA H20", "h20"),
        ("h20-141gb", "h20-141"),
        ("NVIDIA GH200 480GB", "gh200"),
        ("NVIDIA GH200 120GB", "gh200"),
        ("NVIDIA GB200", "gb200"),
        ("NVIDIA GB300", "gb300"),
        ("NVIDIA B300 SXM6 AC", "b300"),
        ("Tesla T4", "t4"),
        ("NVIDIA L4", "l4"),
        ("NVIDIA A10G", "a10g"),
        ("NVIDIA RTX A6000", "a6000"),
        ("NVIDIA RTX 6000 Ada Generation", "rtx6000ada"),
        ("NVIDIA GeForce RTX 3090", "rtx3090"),
        ("NVIDIA GeForce RTX 4090", "rtx4090"),
        ("NVIDIA GeForce RTX 5090", "rtx5090"),
        ("NVIDIA RTX PRO 6000 Blackwell Server Edition", "rtxpro6000"),
        ("AMD Instinct MI300X OAM", "mi300x"),
        ("AMD Instinct MI355X", "mi355x"),
    ],
)
def test_accelerators_are_known_by_the_names_that_drivers_print(printed: str, name: str) -> None:
    found = find_gpu(printed)
    assert found is not None
    assert name == found.name


@pytest.mark.parametrize("printed", ["Tesla V100-SXM2-16GB", "NVIDIA GeForce RTX 4080", "NVIDIA H100 40GB", "tpu-v6"])
def test_accelerators_with_another_memory_or_number_are_not_taken_for_their_neighbours(printed: str) -> None:
    assert find_gpu(printed) is None


def test_reductions_between_servers_take_the_network() -> None:
    gpu = find_gpu("h100")
    assert gpu is not None
    assert gpu.link == gpu.reduce_bandwidth(8)
    assert 50e9 == gpu.reduce_bandwidth(16)
