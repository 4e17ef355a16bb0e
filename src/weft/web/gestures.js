// How a timeline is moved: mouse, wheel, touch, and keyboard all end in `pan`, `zoom`, and `point`.

const CLICK_PX = 4;
const PAN_KEY = 0.2;
const ZOOM_KEY = 1.4;
const ZOOM_PER_PX = 1.0018;
const moving = new WeakSet();

/** Whether someone is dragging it. */
export function isMoving(area) {
  return moving.has(area);
}

/** `area`: the element; `chart`: what moves. */
export function listen(area, chart) {
  const pointers = new Map();
  let travelled = 0;

  area.addEventListener("pointerdown", (event) => {
    if (event.button !== 0 || event.target.closest("button")) return;
    if (!pointers.size) travelled = 0;
    pointers.set(event.pointerId, event);
  });
  area.addEventListener("pointermove", (event) => {
    const before = pointers.get(event.pointerId);
    if (!before) {
      if (event.pointerType !== "touch") chart.point(chart.spanAt(event.clientX, event.clientY), event.clientX, event.clientY);
      return;
    }
    const width = Math.max(area.clientWidth - chart.gutter, 1);
    const others = [...pointers.values()].filter((one) => one.pointerId !== event.pointerId);
    travelled += Math.abs(event.clientX - before.clientX);
    if (travelled > CLICK_PX && !moving.has(area)) {
      moving.add(area);
      area.setPointerCapture(event.pointerId);
      chart.point(null);
    }
    if (!moving.has(area)) return;
    if (others.length) pinch(chart, before, event, others[0]);
    else chart.pan((before.clientX - event.clientX) / width);
    pointers.set(event.pointerId, event);
  });
  const end = (event) => {
    if (!pointers.delete(event.pointerId)) return;
    const wasMoving = moving.has(area);
    if (!pointers.size) moving.delete(area);
    if (wasMoving || event.type !== "pointerup") return;
    const span = chart.spanAt(event.clientX, event.clientY);
    // A finger cannot hover: its first tap shows the numbers, a tap on what is shown opens it.
    const isOpening = event.pointerType !== "touch" || chart.isPointedAt(span);
    chart.point(span, event.clientX, event.clientY);
    if (span && isOpening) chart.openPointed();
  };
  area.addEventListener("pointerup", end);
  area.addEventListener("pointercancel", end);
  area.addEventListener("pointerleave", (event) => {
    if (event.pointerType !== "touch" && !pointers.size) chart.point(null);
  });
  area.addEventListener("wheel", (event) => wheel(area, chart, event), { passive: false });
  area.addEventListener("keydown", (event) => {
    if (event.target === area) press(chart, event);
  });
  area.addEventListener("blur", () => chart.point(null));
}

/** Zooms with Ctrl, or while the timeline has the focus; otherwise the page scrolls, as users expect. */
function wheel(area, chart, event) {
  if (Math.abs(event.deltaX) > Math.abs(event.deltaY) || event.shiftKey) {
    event.preventDefault();
    chart.pan((event.deltaX || event.deltaY) / area.clientWidth);
  } else if (event.ctrlKey || event.metaKey || document.activeElement === area) {
    event.preventDefault();
    const lines = event.deltaMode === WheelEvent.DOM_DELTA_LINE ? 16 : 1;
    chart.zoom(ZOOM_PER_PX ** (event.deltaY * lines), chart.shareAt(event.clientX));
  }
}

function pinch(chart, before, now, other) {
  const was = Math.max(Math.abs(before.clientX - other.clientX), 20);
  const is = Math.max(Math.abs(now.clientX - other.clientX), 20);
  chart.zoom(was / is, chart.shareAt((now.clientX + other.clientX) / 2));
}

function press(chart, event) {
  const actions = {
    ArrowLeft: () => chart.pan(-PAN_KEY),
    ArrowRight: () => chart.pan(PAN_KEY),
    "+": () => chart.zoom(1 / ZOOM_KEY),
    "=": () => chart.zoom(1 / ZOOM_KEY),
    "-": () => chart.zoom(ZOOM_KEY),
    End: () => chart.follow(),
    n: () => chart.pointNext(1),
    p: () => chart.pointNext(-1),
    Enter: () => chart.openPointed(),
  };
  const action = actions[event.key];
  if (!action || event.ctrlKey || event.metaKey || event.altKey) return;
  event.preventDefault();
  action();
}
