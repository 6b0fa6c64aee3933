"""A page in the browser that shows what one process does. The process serves it itself, to its own organisation only.

The page is static: HTML, CSS and JavaScript in `static`, without a build step, and nothing is fetched from elsewhere.
"""
