"""Run inside gdb: prints each function of a list when the program first enters it.

LIVES_SYMBOLS names a file of lines `NAME SYMBOL`, the symbol as the linker has it. What the program
enters before its function `life_begins` is not printed. Several symbols may have one name.
"""

import os

import gdb

entered = []


class Entry(gdb.Breakpoint):
    """A breakpoint that notes a name once and lets the program go on."""

    def __init__(self, name, symbol):
        super().__init__("*'" + symbol + "'", internal=True)
        self.silent = True
        self.name = name

    def stop(self):
        entered.append(self.name)
        self.enabled = False
        return False


with open(os.environ["LIVES_SYMBOLS"]) as file:
    symbols = [line.split() for line in file]
gdb.execute("set pagination off")
# Signals are the program's own business.
gdb.execute("handle all nostop noprint pass", to_string=True)
for name, symbol in symbols:
    if name == "life_begins":
        gdb.Breakpoint("*'" + symbol + "'", internal=True, temporary=True).silent = True
try:
    gdb.execute("run", to_string=True)
except gdb.error as error:
    # Containers may forbid ptrace.
    print("forbidden" if "not permitted" in str(error) else error)
    gdb.execute("quit")
for name, symbol in symbols:
    if name != "life_begins":
        Entry(name, symbol)
gdb.execute("continue", to_string=True)
for name in entered:
    print("entered", name)
print("exit", gdb.parse_and_eval("$_exitcode"))
