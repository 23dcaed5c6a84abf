"""Every configuration on this machine: runs `molprof bench`, and puts its tables into docs/benchmarks.md.

python benchmarks/configurations.py --folder results            # an hour on two idle CPU cores
python benchmarks/configurations.py --folder results --device cuda --batch-size 16 -n 64 --large
python benchmarks/configurations.py --folder results --only cache,batch

Interrupted, or run again, it goes on where it was: results stay in the folder, a file of JSON lines per benchmark.
With --write the tables of all files in the folder replace those of the page.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
from pathlib import Path

from molprof.common.files import replacing

PAGE = Path(__file__).parent.parent / "docs" / "benchmarks.md"
BEGIN, END = "<!-- benchmarks/configurations.py -->", "<!-- end -->"


def benchmarks(arguments: argparse.Namespace) -> dict[str, list[str]]:
    """File name -> arguments of `molprof bench`."""
    size, count = str(arguments.batch_size), str(arguments.count)
    generation = ["--model", arguments.models, "--batch-size", size, "-n", count]
    sizes = "1,4,16,64,128,192" if arguments.large else "1,2,4,8,16"
    compiles = "off,default,reduce-overhead,max-autotune" if arguments.large else "off,default"
    return {
        "sdpa": ["sdpa"],
        "attention": ["attention", *generation, "--processor", "none,auto", "--kv-cache", "dynamic,static"],
        "cache": ["cache", *generation, "--compile", "off,reduce-overhead" if arguments.large else "off"],
        "batch": ["batch", "--model", arguments.models, "--batch-size", sizes, "-n", sizes.rpartition(",")[2]],
        "compile": ["compile", *generation, "--compile", compiles, "--limit", "3600"],
        "processors": ["processors", *generation],
    }


def molprof(*arguments: str) -> str:
    """Standard output of a command; its progress goes where this one's goes."""
    command = [sys.executable, "-m", "molprof", *arguments]
    return subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout


def section(path: Path) -> str:
    """The tables of one file, and the advice where whole generation was measured."""
    texts = [molprof("bench", "show", str(path), "--format", "markdown")]
    if path.stem != "sdpa":
        texts.append(molprof("recommend", str(path), "--format", "markdown"))
    # The page has its own heading for the file, so that those of the tables go below it.
    bodies = [text.partition("\n")[2].replace("\n### ", "\n#### ").strip() for text in texts]
    return "\n\n".join([f"### {path.stem}", *bodies])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--folder", type=Path, required=True)
    parser.add_argument("--models", default="qwen,llama")
    parser.add_argument("--batch-size", type=int, default=8)
    parser.add_argument("-n", dest="count", type=int, default=8)
    parser.add_argument("--repeats", type=int, default=4)
    parser.add_argument("--device", default="auto")
    parser.add_argument("--threads", type=int)
    parser.add_argument("--large", action="store_true", help="batch sizes up to 192, all modes of torch.compile")
    parser.add_argument("--only", help="these benchmarks, with commas")
    parser.add_argument("--write", action="store_true", help="put the tables into docs/benchmarks.md")
    arguments = parser.parse_args()
    arguments.folder.mkdir(parents=True, exist_ok=True)
    chosen = arguments.only.split(",") if arguments.only else list(benchmarks(arguments))
    common = ["--repeats", str(arguments.repeats), "--device", arguments.device, "--resume"]
    common += ["--threads", str(arguments.threads)] if arguments.threads else []
    files = [arguments.folder / f"{name}.jsonl" for name in chosen]
    for name, path in zip(chosen, files, strict=True):
        sys.stderr.write(f"{name}\n")
        molprof("bench", *benchmarks(arguments)[name], *common, "-o", str(path))
    text = "\n\n".join(section(path) for path in files)
    if not arguments.write:
        sys.stdout.write(text + "\n")
        return
    page = PAGE.read_text(encoding="utf-8")
    before, rest = page.split(BEGIN)
    with replacing(PAGE) as part:
        part.write_text(f"{before}{BEGIN}\n{text}\n{END}{rest.split(END)[1]}", encoding="utf-8")


if __name__ == "__main__":
    main()
