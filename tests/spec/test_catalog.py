import pytest
import yaml

from partrain.model.shape import parameters
from partrain.spec import catalog
from partrain.spec.catalog import UnknownName, device, device_from_driver, model_names, model_preset, node
from partrain.spec.forms import keys_of
from partrain.spec.model import ModelSection, ModelSpec
from partrain.spec.resolve import resolve_model

PUBLISHED = {
    "gpt2": 124_439_808,
    "gpt2-medium": 354_823_168,
    "gpt2-large": 774_030_080,
    "gpt2-xl": 1_557_611_200,
    "llama-3.1-8b": 8_030_261_248,
    "llama-3.1-70b": 70_553_706_496,
    "llama-3.1-405b": 405_853_388_800,
    "llama-3.2-1b": 1_235_814_400,
    "llama-3.2-3b": 3_212_749_824,
    "llama-2-7b": 6_738_415_616,
    "llama-2-13b": 13_015_864_320,
    "llama-2-70b": 68_976_648_192,
    "mistral-7b-v0.1": 7_241_732_096,
    "mistral-7b-v0.3": 7_248_023_552,
    "qwen2.5-0.5b": 494_032_768,
    "qwen2.5-1.5b": 1_543_714_304,
    "qwen2.5-3b": 3_085_938_688,
    "qwen2.5-7b": 7_615_616_512,
    "qwen2.5-14b": 14_770_033_664,
    "qwen2.5-32b": 32_763_876_352,
    "qwen2.5-72b": 72_706_203_648,
    "qwen3-0.6b": 596_049_920,
    "qwen3-1.7b": 1_720_574_976,
    "qwen3-4b": 4_022_468_096,
    "qwen3-8b": 8_190_735_360,
    "qwen3-14b": 14_768_307_200,
    "qwen3-32b": 32_762_123_264,
    "gemma-2b": 2_506_172_416,
    "gemma-7b": 8_537_680_896,
    "pythia-14m": 14_067_712,
    "pythia-31m": 30_494_720,
    "pythia-70m": 70_426_624,
    "pythia-160m": 162_322_944,
    "pythia-410m": 405_334_016,
    "pythia-1b": 1_011_781_632,
    "pythia-1.4b": 1_414_647_808,
    "pythia-2.8b": 2_775_208_960,
    "pythia-6.9b": 6_857_302_016,
    "pythia-12b": 11_846_072_320,
    "gpt-neox-20b": 20_554_567_680,
}
ROUNDED = {
    # Brown et al. 2020, appendix D, in millions; the smaller ones are rounded to three digits
    "gpt3-small": (125, 1e6),
    "gpt3-medium": (356, 1e6),
    "gpt3-large": (760, 1e6),
    "gpt3-2.7b": (265, 1e7),
    "gpt3-6.7b": (666, 1e7),
    "gpt3-175b": (1746, 1e8),
    # Korthikanti et al. 2022, table 3; Narayanan et al. 2021, table 1, has the last two to a decimal
    "megatron-22b": (22, 1e9),
    "megatron-175b": (175, 1e9),
    "megatron-530b": (5296, 1e8),
    "megatron-1t": (10080, 1e8),
}


def model_of(name: str) -> ModelSpec:
    resolved = resolve_model(ModelSection(preset=name), sequence_length=128, vocab_size=None)
    assert resolved.model is not None, resolved.reasons
    return resolved.model


@pytest.mark.parametrize("name", model_names())
def test_a_presets_weight_table_adds_up_to_its_published_total(name: str) -> None:
    assert parameters(model_of(name)) == model_preset(name).parameters


@pytest.mark.parametrize(("name", "total"), PUBLISHED.items())
def test_the_catalogue_states_the_published_total(name: str, total: int) -> None:
    assert model_preset(name).parameters == total


@pytest.mark.parametrize(("name", "rounded"), ROUNDED.items())
def test_a_model_without_published_weights_has_its_papers_rounded_total(
    name: str, rounded: tuple[int, float]
) -> None:
    number, unit = rounded
    assert round(model_preset(name).parameters / unit) == number


def test_every_published_model_is_compared() -> None:
    assert {*PUBLISHED, *ROUNDED, "tiny", "tiny-gpt"} == set(model_names())


def test_gpt2_counted_by_hand() -> None:
    block = (4 * 768 * 768 + 4 * 768) + (2 * 768 * 3072 + 3072 + 768) + 2 * (2 * 768)
    assert parameters(model_of("gpt2")) == 50257 * 768 + 1024 * 768 + 12 * block + 2 * 768


@pytest.mark.parametrize("name", model_names())
def test_every_preset_names_its_source_and_only_fields_of_a_model(name: str) -> None:
    preset = model_preset(name)
    assert preset.source
    assert set(preset.fields) <= set(keys_of(ModelSection))


def test_tiny_can_be_split_by_two() -> None:
    model = model_of("tiny")
    assert model.num_heads % 2 == model.num_kv_heads % 2 == model.mlp_size % 2 == 0


def test_an_unknown_model_comes_with_the_nearest_names() -> None:
    with pytest.raises(UnknownName, match="llama-3-8b") as caught:
        model_preset("llama-3-8b")
    assert caught.value.nearest[0] == "llama-3.1-8b"
    assert caught.value.known == model_names()


def test_a_counted_node_has_that_many_devices() -> None:
    facts = node("8xa100-80g")
    assert (facts.device, facts.name, facts.num_devices) == ("cuda", "a100-80g", 8)
    assert (facts.bf16_flops, facts.fp32_flops) == (312e12, 19.5e12)
    assert facts.memory_bytes == int(79.14 * 2**30)


def test_a_named_node_is_its_devices() -> None:
    assert node("dgx-h100") == node("8xh100")


def test_a_cpu_node_has_cores_and_no_known_speed() -> None:
    facts = node("cpu")
    assert facts.device == "cpu"
    assert facts.num_devices >= 1
    assert facts.bf16_flops is None


@pytest.mark.parametrize(
    ("text", "nearest"),
    [
        ("8xh10", "8xh100"),
        ("4xa100-80gb", "4xa100-80g"),
        ("h100", "8xh100"),
        ("dgx-h10", "dgx-h100"),
        ("0xh100", "8xh100"),
        ("CPU", "cpu"),
    ],
)
def test_an_unknown_node_comes_with_the_nearest(text: str, nearest: str) -> None:
    with pytest.raises(UnknownName) as caught:
        node(text)
    assert nearest in caught.value.nearest


@pytest.mark.parametrize(
    ("driver", "name"),
    [
        ("NVIDIA H100 80GB HBM3", "h100"),
        ("NVIDIA H200", "h200"),
        ("NVIDIA A100-SXM4-40GB", "a100-40g"),
        ("A100-SXM4-80GB", "a100-80g"),
        ("NVIDIA A100 80GB PCIe", "a100-pcie-80g"),
        ("NVIDIA GeForce RTX 4090", "rtx-4090"),
        ("NVIDIA L4", "l4"),
    ],
)
def test_a_drivers_name_finds_the_device(driver: str, name: str) -> None:
    found = device_from_driver(driver)
    assert found is not None
    assert found.name == name


@pytest.mark.parametrize("driver", ["NVIDIA A100-SXM4-40GB MIG 1g.5gb", "NVIDIA L400", "Some Card", ""])
def test_a_name_that_is_not_exactly_a_devices_finds_none(driver: str) -> None:
    assert device_from_driver(driver) is None


def test_no_two_devices_share_a_drivers_name() -> None:
    names = [name for entry in catalog._entries("devices").values() for name in entry.get("driver", ())]
    assert len(names) == len(set(names))


def test_every_device_has_a_source_that_is_listed_and_a_positive_speed() -> None:
    text = (catalog._FOLDER / "devices.yaml").read_text(encoding="utf-8")
    for name, entry in yaml.safe_load(text).items():
        assert all(f"#   {letter}  " in text for letter in entry["source"].split()), name
        assert (device(name).bf16_flops or 0) > 1e12


def test_every_named_node_is_of_known_devices() -> None:
    for name in catalog._entries("nodes"):
        assert node(name).num_devices > 0
