"""What type checkers read of the package is what there is."""

import ast
import inspect
import pathlib
from importlib.metadata import version

import cxloe

#: Of the interpreter's own making: in no stub, or called otherwise there.
IMPLIED = {"__buffer__", "__release_buffer__", "__doc__", "__module__", "__new__", "__repr__"}


def stub():
    return ast.parse((pathlib.Path(cxloe.__file__).parent / "_cxloe.pyi").read_text())


def members(body):
    return {one.name: one for one in body if isinstance(one, (ast.FunctionDef, ast.ClassDef))}


def test_the_package_says_that_it_has_types_and_which_version_it_is():
    assert (pathlib.Path(cxloe.__file__).parent / "py.typed").exists()
    assert cxloe.__version__ == version("cxloe")


def test_stubs_have_every_member_and_no_other():
    classes = {name: one for name, one in members(stub().body).items() if hasattr(cxloe, name)}
    assert set(classes) == {"Node", "Mapping", "Region", "connect"}
    for name, one in classes.items():
        if isinstance(one, ast.FunctionDef):
            continue
        written = set(members(one.body)) - IMPLIED
        assert written == set(vars(getattr(cxloe, name))) - IMPLIED, name


def test_options_and_defaults_are_those_of_the_stubs():
    for owner, body in ((cxloe, stub().body), (cxloe.Node, members(stub().body)["Node"].body)):
        for name, one in members(body).items():
            compiled = getattr(owner, name, None)
            if not isinstance(one, ast.FunctionDef) or not callable(compiled) or name.startswith("__"):
                continue
            parameters = inspect.signature(compiled).parameters.values()
            written = one.args.posonlyargs + one.args.args + one.args.kwonlyargs
            assert [parameter.name for parameter in parameters] == [argument.arg for argument in written], name
            defaults = one.args.defaults + [default for default in one.args.kw_defaults if default is not None]
            given = [parameter.default for parameter in parameters if parameter.default is not inspect.Parameter.empty]
            assert len(given) == len(defaults), name
            for here, there in zip(given, defaults, strict=True):
                # A default that is not a literal in the library has no value that Python shows.
                assert here is ... or here == ast.literal_eval(there), name


def test_everything_public_is_documented():
    for name in cxloe.__all__:
        public = getattr(cxloe, name)
        assert inspect.getdoc(public), name
        if inspect.isclass(public) and public.__module__.startswith("cxloe"):
            for member, one in vars(public).items():
                if not member.startswith("_"):
                    assert inspect.getdoc(one), f"{name}.{member}"
