"""What coordinator and agents share to be observed: metrics read at scrape, and read-only HTTP.

It knows neither of them, and a training process never imports it: Prometheus' client and aiohttp are the daemons' alone.
"""
