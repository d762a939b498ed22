"""Published rules after a run: is it valid by the rules of a benchmark?"""
