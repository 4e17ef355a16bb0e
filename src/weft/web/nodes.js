// What every part of the dashboard shares about nodes: the names and kinds of their devices.

import { plain } from "./text.js";

const NO_KIND = "no kind";

/** All nodes of one answer.  Kinds are empty unless there are several: otherwise there is nothing to tell apart. */
export class Nodes {
  #kinds = new Map();
  #names = new Map();

  constructor(rows) {
    this.all = rows;
    const isMixed = new Set(rows.map((node) => node.kind)).size > 1;
    for (const node of rows) {
      for (const { device, name } of node.devices) {
        this.#names.set(device, name);
        this.#kinds.set(name, isMixed ? plain(node.kind) || NO_KIND : "");
      }
    }
  }

  /** The kind of a node's devices. */
  kind(node) {
    return node.devices.length ? this.kindOf(node.devices[0].name) : "";
  }

  /** The kind of a device, by name. */
  kindOf(name) {
    return this.#kinds.get(name) ?? "";
  }

  /** "host/0, host/1 (A100)": a job's devices, all of one kind. */
  devicesText(devices) {
    if (!devices.length) return "";
    const names = devices.map((device) => this.#names.get(device) ?? String(device));
    const kind = this.kindOf(names[0]);
    return plain(names.join(", ")) + (kind ? ` (${kind})` : "");
  }
}
