
"use strict";
// Shows how a payment at the sandbox stands and tells the sandbox what its buyer does. Knows no order but this one.
(() => {
  const WORDS = {
    zh: {
      title: "沙箱付款", badge: "沙箱 · 不会真的扣款", colours: "颜色", auto: "自动", light: "浅色", dark: "深色",
      pay: "付款", fail: "付款失败", late: "晚些付款", twice: "付两次", delay: "“晚些付款”指多少秒之后：",
      happened: "发生了什么", nothing: "还没有。", sending: "正在发送…", sent: "已发送，回调答复 {status}。",
      waiting: "{seconds} 秒后发送回调。", lost: "没有答复，请再试。", left: "还剩 {time}", over: "付款时间已过",
      gone: "这里没有这笔付款。", delivery: "回调 {n}/{of}：{outcome}，答复 {status}",
      delayed: "{seconds} 秒后：{outcome}", paid: "已付", failed: "失败", none: "无",
      orders: { queued: "请求已受理，正在确认", awaiting_payment: "等待付款", paid: "付款成功", closed: "订单已关闭",
        refused: "订单未成立", refunding: "正在退款", refunded: "已退款", refund_failed: "退款失败，需要人工处理" },
      captures: { captured: "已收款，待处理", applied: "已用于订单", refund_due: "将退回", refunding: "正在退回",
        refunded: "已退回", refund_failed: "退回失败，需要人工处理" },
    },
    en: {
      title: "Sandbox payment", badge: "Sandbox · no money moves", colours: "Colours", auto: "Auto", light: "Light",
      dark: "Dark", pay: "Pay", fail: "Fail", late: "Pay late", twice: "Pay twice",
      delay: "Pay late means so many seconds from now:", happened: "What happened", nothing: "Nothing yet.",
      sending: "Sending…", sent: "Sent; the callback answered {status}.", waiting: "The callback leaves in {seconds} s.",
      lost: "No answer. Please try again.", left: "{time} left to pay", over: "The time to pay is over",
      gone: "There is no such payment here.", delivery: "Callback {n} of {of}: {outcome}, answered {status}",
      delayed: "In {seconds} s: {outcome}", paid: "paid", failed: "failed", none: "nothing",
      orders: { queued: "Request accepted, confirming", awaiting_payment: "Waits for payment", paid: "Paid. Thank you",
        closed: "The order is closed", refused: "The order was refused", refunding: "Refund on its way",
        refunded: "Refunded", refund_failed: "The refund failed; somebody looks at it" },
      captures: { captured: "taken, not decided yet", applied: "pays the order", refund_due: "goes back",
        refunding: "is being returned", refunded: "is back", refund_failed: "could not be returned" },
    },
  };
  const LOOK_EVERY_MS = 1000;
  const language = (navigator.language || "en").startsWith("zh") ? "zh" : "en";
  const words = WORDS[language];
  const of = (id) => document.getElementById(id);
  const fill = (text, values) => text.replace(/\{(\w+)\}/g, (_, name) => String(values[name]));
  const address = "/sandbox/payments/" + location.pathname.split("/").pop();
  const buttons = ["pay", "fail", "late", "twice"].map(of);
  let ahead = 0;
  let payBy = null;

  document.documentElement.lang = language === "zh" ? "zh-Hans" : "en";
  document.title = words.title + " · Doorbuster";
  for (const element of document.querySelectorAll("[data-text]")) element.textContent = words[element.dataset.text];

  // Browsers round some currencies to what people carry; the minor units are those of ISO 4217.
  function money({ amount, digits }) {
    const { amount: minor, currency } = amount;
    const fraction = { minimumFractionDigits: digits, maximumFractionDigits: digits };
    const format = new Intl.NumberFormat(document.documentElement.lang, { style: "currency", currency, ...fraction });
    return format.format(minor / 10 ** digits);
  }

  function row(list, at, text, tone) {
    const item = document.createElement("li");
    if (at) {
      const time = document.createElement("time");
      time.dateTime = at;
      time.textContent = new Date(at).toLocaleTimeString();
      item.append(time);
    }
    const said = document.createElement("span");
    said.textContent = text;
    if (tone) said.className = tone;
    item.append(said);
    list.append(item);
  }

  function show(payment) {
    of("amount").textContent = money(payment);
    const order = of("order");
    order.textContent = words.orders[payment.order_state] || payment.order_state || "";
    order.className = "state" + (payment.order_state === "paid" ? " good" : payment.order_state === "refund_failed" ? " bad" : "");
    ahead = Date.parse(payment.now) - Date.now();
    payBy = payment.order_state === "awaiting_payment" && payment.pay_by ? Date.parse(payment.pay_by) : null;
    tick();
    const captures = of("captures");
    const happenings = of("happenings");
    captures.replaceChildren();
    happenings.replaceChildren();
    payment.captures.forEach((capture, index) => {
      const why = capture.reason ? " (" + capture.reason + ")" : "";
      const tone = capture.state === "applied" ? "good" : capture.state === "refund_failed" ? "bad" : "";
      row(captures, null, money(payment) + " #" + (index + 1) + ": " + words.captures[capture.state] + why, tone);
    });
    for (const one of [...payment.happenings].reverse()) {
      const outcome = words[one.outcome];
      const text = one.delivery === 0
        ? fill(words.delayed, { seconds: one.delay_ms / 1000, outcome })
        : fill(words.delivery, { n: one.delivery, of: one.times, outcome, status: one.status || words.none });
      row(happenings, one.at, text, one.delivery > 0 && !(one.status < 300) ? "bad" : "");
    }
    of("nothing").hidden = payment.captures.length + payment.happenings.length > 0;
  }

  function tick() {
    const time = of("time");
    if (payBy === null) { time.textContent = "\u00a0"; return; }
    const left = Math.ceil((payBy - Date.now() - ahead) / 1000);
    const two = (n) => String(n).padStart(2, "0");
    time.textContent = left > 0
      ? fill(words.left, { time: two(Math.floor(left / 60)) + ":" + two(left % 60) }) : words.over;
  }

  async function look() {
    const response = await fetch(address, { cache: "no-store" });
    if (response.status === 404) { of("order").textContent = words.gone; return; }
    if (response.ok) show(await response.json());
  }

  async function tell(act) {
    const response = await fetch(address, {
      method: "POST", headers: { "content-type": "application/json" }, body: JSON.stringify(act),
    });
    const answer = await response.json();
    if (!response.ok) return answer.detail || words.lost;
    if (act.delay_ms) return fill(words.waiting, { seconds: act.delay_ms / 1000 });
    return fill(words.sent, { status: answer.answers.join(", ") || words.none });
  }

  async function act(...acts) {
    for (const button of buttons) button.disabled = true;
    of("said").textContent = words.sending;
    let said = words.lost;
    try {
      for (const one of acts) said = await tell(one);
      await look();
    } catch {
      said = words.lost;
    }
    of("said").textContent = said;
    for (const button of buttons) button.disabled = false;
  }

  const paid = { outcome: "paid" };
  of("pay").addEventListener("click", () => act(paid));
  of("fail").addEventListener("click", () => act({ outcome: "failed" }));
  of("twice").addEventListener("click", () => act(paid, paid));
  of("late").addEventListener("click", () => {
    const seconds = Math.min(Math.max(Number(of("seconds").value) || 1, 1), 3600);
    act({ ...paid, delay_ms: Math.round(seconds * 1000) });
  });
  const again = () => {
    tick();
    if (!document.hidden) look().catch(() => {});
  };
  setInterval(again, LOOK_EVERY_MS);
  again();
})();
