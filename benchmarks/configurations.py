"""Every configuration on this machine: runs `molprof bench`, and puts its tables into docs/benchmarks.md.

python benchmarks/configurations.py --folder results            # an hour on two idle CPU cores
python benchmarks/configurations.py --folder results --device cuda --batch-size 16 -n 64 --large
python benchmarks/configurations.py --folder results --only cache,batch

Each benchmark has a file of JSON lines in the folder; run again, it resumes from there. With --write the tables of all
files replace those of the page.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
from pathlib import Path

from shared import generation_parser, progress, publish

MARKS = "<!-- benchmarks/configurations.py -->", "<!-- end -->"


def benchmarks(options: argparse.Namespace) -> dict[str, list[str]]:
    """File name -> arguments of `molprof bench`."""
    generation = ["--model", options.models, "--batch-size", str(options.batch_size), "-n", str(options.count)]
    sizes = "1,4,16,64,128,192" if options.large else "1,2,4,8,16"
    compiles = "off,default,reduce-overhead,max-autotune" if options.large else "off,default"
    return {
        "sdpa": ["sdpa"],
        "attention": ["attention", *generation, "--processor", "none,auto", "--kv-cache", "dynamic,static"],
        "cache": ["cache", *generation, "--compile", "off,reduce-overhead" if options.large else "off"],
        "batch": ["batch", "--model", options.models, "--batch-size", sizes, "-n", sizes.rpartition(",")[2]],
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
    # The page has its own heading for the file; those of the tables go below it.
    bodies = [text.partition("\n")[2].replace("\n### ", "\n#### ").strip() for text in texts]
    return "\n\n".join([f"### {path.stem}", *bodies])


def main() -> None:
    parser = generation_parser(__doc__, count=8, batch_size=8)
    parser.add_argument("--folder", type=Path, required=True)
    parser.add_argument("--repeats", type=int, default=4)
    parser.add_argument("--threads", type=int)
    parser.add_argument("--large", action="store_true", help="batch sizes up to 192, all modes of torch.compile")
    parser.add_argument("--only", help="these benchmarks, separated by commas")
    options = parser.parse_args()
    options.folder.mkdir(parents=True, exist_ok=True)
    known = benchmarks(options)
    common = ["--repeats", str(options.repeats), "--device", options.device, "--resume"]
    common += ["--threads", str(options.threads)] if options.threads else []
    files = [options.folder / f"{name}.jsonl" for name in (options.only.split(",") if options.only else known)]
    for path in files:
        progress(path.stem)
        molprof("bench", *known[path.stem], *common, "-o", str(path))
    publish("\n\n".join(map(section, files)), options.write, "benchmarks.md", MARKS)


if __name__ == "__main__":
    main()
