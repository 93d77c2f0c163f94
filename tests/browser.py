"""Pages in the system's Chromium, checked for what every page must have."""

import contextlib


@contextlib.contextmanager
def opened_page(browser, path, width, height, scheme="light"):
  """Opens a file of HTML offline; it has to be whole, and readable for all.

  It must not need the network, say anything on the console, be wider than the
  window, or break a rule of axe.
  """
  from axe_playwright_python.sync_playwright import Axe

  context = browser.new_context(
    viewport={"width": width, "height": height},
    bypass_csp=True,
    color_scheme=scheme,
  )
  with contextlib.closing(context):
    context.set_offline(True)
    tab = context.new_page()
    messages, requests = [], []
    tab.on("console", lambda message: messages.append(message.text))
    tab.on("pageerror", lambda error: messages.append(str(error)))
    tab.on("request", lambda request: requests.append(request.url))
    tab.goto(path.as_uri())
    assert messages == []
    assert [r for r in requests if not r.startswith(("data:", "file:"))] == []
    assert tab.evaluate("document.documentElement.scrollWidth") <= width
    yield tab
    broken = Axe().run(tab).response["violations"]
    assert [(rule["id"], rule["help"]) for rule in broken] == []
