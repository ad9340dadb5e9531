// The servers that python/conftest.py describes, for Node.

import { execFileSync } from "node:child_process";

export const url = process.env.KVASIR_URL;
export const scriptedUrl = process.env.KVASIR_SCRIPTED_URL;

const WRITE = `
import json, os, sys
from pathlib import Path
from tokenizers import Tokenizer
encoder = Tokenizer.from_file(os.environ["KVASIR_MODEL"] + "/tokenizer.json")
Path(os.environ["KVASIR_SCRIPT"]).write_text(json.dumps(encoder.encode(sys.argv[1]).ids))
`;

/** What the engine at scriptedUrl answers from now on. */
export function says(text) {
  execFileSync(process.env.KVASIR_PYTHON, ["-c", WRITE, text]);
}

/** Waits until no request runs at url. */
export async function idle() {
  const deadline = Date.now() + 60_000;
  while ((await (await fetch(`${url}/load`)).json()).server_load > 0) {
    if (Date.now() > deadline) throw new Error("a request runs on");
    await new Promise((done) => setTimeout(done, 20));
  }
}
