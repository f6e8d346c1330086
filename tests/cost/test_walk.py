"""The walk over a tape against sums made by hand."""

from partrain.cost.walk import Peak, walk
from partrain.model.tape import INPUT, Op, Tape

# x (10) -> a (20, keeps x) -> b (30, keeps a) -> x + b (10)
SUM = Tape(
    "sum",
    (
        Op("a", (INPUT,), "a", 20, keeps=(INPUT,), weight=5),
        Op("b", ("a",), "b", 30, keeps=("a",), extra=3, weight=7),
        Op("add", (INPUT, "b"), "y", 10, passes=(INPUT, "b")),
    ),
    input_size=10,
)


def test_what_autograd_keeps_is_held() -> None:
    assert walk(SUM).held == 10 + 20 + 3


def test_forward_is_worst_where_all_its_tensors_are() -> None:
    # at the sum: x, a and the extra are kept, b is read, y is made
    assert walk(SUM).forward == Peak("add", 10 + 20 + 3 + 30 + 10)


def test_without_gradients_nothing_outlives_its_last_reader() -> None:
    # at b: x, a, the extra for a moment, and b
    assert walk(SUM).silent == Peak("b", 10 + 20 + 3 + 30)


def test_backward_holds_gradients_and_what_still_waits() -> None:
    # at b: x, a and the extra; y's gradient, which is x's and b's too, and a's; the weight's own
    assert walk(SUM).backward == Peak("b", 10 + 20 + 3, 10 + 20, 7)


def test_gradients_of_weights_that_stay_add_up() -> None:
    # two matrices that keep next to nothing: at the first, the second's gradient (50) has come to stay
    small = (
        Op("a", (INPUT,), "a", 1, keeps=(INPUT,), weight=40),
        Op("b", ("a",), "b", 1, keeps=("a",), weight=50),
    )
    assert walk(Tape("two", small, 1)).growing == Peak("a", 1, 2, 40, 50)
    assert walk(Tape("two", small, 1)).backward == Peak("b", 2, 2, 50)


def test_recompute_keeps_the_input_alone_and_makes_the_rest_again() -> None:
    again = walk(Tape("sum", SUM.ops, 10, recompute=True))
    assert again.held == 10
    assert again.backward == Peak("add, again", 73, 10)


def test_a_view_has_no_storage_of_its_own() -> None:
    tape = Tape("view", (Op("look", (INPUT,), "v", 0), Op("use", ("v",), "y", 4, keeps=("v",))), 8)
    assert walk(tape).held == 8
    assert walk(tape).forward.bytes == 8 + 4


def test_an_operator_that_is_ready_gives_its_gradients_from_what_it_kept() -> None:
    # the gradient of x (10) is part of the extra, and moves; the weight's (6) is the rest
    tape = Tape("loss", (Op("loss", (INPUT,), "l", 4, extra=16, weight=6, ready=True),), 10)
    assert walk(tape).held == 16
    assert walk(tape).backward.bytes == 4 + 16
