from typing import Any

from partrain.layout.notes import notes
from partrain.spec.training import BatchRampSection
from tests.layout.proposals import CPU, model, proposal


def note(**changed: Any) -> str:
    (sentence,) = notes(proposal(**changed))
    return sentence


def test_a_layout_that_fills_its_machine_needs_no_note() -> None:
    assert notes(proposal(dp=8)) == ()


def test_a_padded_vocabulary_is_said() -> None:
    # 50257 / 2 = 25128.5, up to 25136 on each of 2 shards.
    sentence = note(model=model("gpt2"), dp=4, tp=2)
    assert sentence == "vocabulary 50257 is padded to 50272: a multiple of 8 on each of tp=2 shards"


def test_a_vocabulary_in_one_shard_is_padded_to_a_multiple_of_8() -> None:
    assert (
        note(model=model("tiny", vocab_size=300), dp=8) == "vocabulary 300 is padded to 304: a multiple of 8"
    )


def test_idle_devices_are_said_with_the_dp_that_uses_them() -> None:
    assert note(tp=2) == "6 of 8 devices stay idle; dp: 4 would use 8"
    # 63 = 3 x 3 x 7: at most 7 of 8.
    assert note(global_batch_size=63) == "7 of 8 devices stay idle; dp: 7 would use 7"
    assert note(dp=7, global_batch_size=63) == "1 of 8 devices stay idle"
    # 64 = 4 + 5 x 12, of which 4 is all that divides start and increment.
    ramp = BatchRampSection(start=4, increment=12, samples=100)
    assert note(batch_ramp=ramp) == "7 of 8 devices stay idle; dp: 4 would use 4"


def test_the_bubble_is_said_with_its_share() -> None:
    # pp - 1 = 3 of 12 + 3 = 15: 20 %.
    sentence = note(dp=2, pp=4, global_batch_size=24)
    assert sentence == "pp=4 with 12 micro-batches: stages wait 20% of a step (3 of 15)"


def test_fewer_micro_batches_than_stages_is_a_note() -> None:
    sentence = note(pp=8, global_batch_size=4)
    assert sentence.endswith("stages wait 64% of a step (7 of 11); fewer micro-batches than stages")


def test_a_tensor_group_across_nodes_is_a_note() -> None:
    wide = model("llama-3.1-8b", num_kv_heads=32)
    sentence = note(model=wide, tp=16, nodes=2)
    assert sentence == "tp=16 does not divide the 8 devices of a node: some tensor groups span two nodes"


def test_ranks_that_share_cores_are_a_note() -> None:
    assert note(machine=CPU, dp=4).startswith("4 ranks share 2 cores")
    assert notes(proposal(machine=CPU)) == ()


def test_offload_on_a_cpu_is_said_to_save_nothing() -> None:
    sentence = "offload=optimizer saves nothing on a CPU, whose memory is the host's"
    assert note(machine=CPU, zero=2, offload="optimizer") == sentence
    assert notes(proposal(dp=8, zero=2, offload="optimizer")) == ()


def test_attention_dropout_is_said_to_depend_on_the_layout() -> None:
    sentence = note(dp=8, model=model("llama-3.1-8b", attention_dropout=0.1))
    assert sentence.startswith("attention_dropout=0.1: which probabilities are dropped depends on the layout")
    assert notes(proposal(dp=8, model=model("llama-3.1-8b", dropout=0.1))) == ()
