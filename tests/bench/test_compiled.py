"""The resources of a compiled kernel can be read without a GPU."""

import pytest

from flashlab.bench.compiled import compiled, main


@pytest.mark.exhaustive
def test_larger_tiles_take_more_resources_and_the_code_can_be_read():
    small, large = compiled((64, 64, 64, 4, 2), (128, 128, 64, 4, 2))
    assert 0 < small.registers < large.registers <= 255 and 0 < small.shared < large.shared
    assert small.stack == 0
    assert "wgmma.mma_async" in small.ptx and "HGMMA" in small.sass and "MUFU.EX2" in small.sass


@pytest.mark.exhaustive
def test_an_error_of_the_compiler_is_raised():
    with pytest.raises(RuntimeError, match="compiler's process failed"):
        compiled((48, 64, 64, 4, 2))


@pytest.mark.parametrize("argv", [[], ["9.0"], ["nine", "64,64,64,4,2"], ["9.0", "64,64,64"], ["9.0", "a,b,c,d,e"]])
def test_a_wrong_command_line_gets_a_sentence(argv, capsys):
    with pytest.raises(SystemExit) as exit:
        main(argv)
    assert exit.value.code == 2 and "error:" in capsys.readouterr().err
