"""Kinds that training never sees: what is needed for them is learnt from the others, if at all."""

from draw import add, div, mul, sub


def parking(d):
    levels, spots = d.n(3, 12), d.n(5, 12)
    go = d.n(2, 9)
    cars = d.n(10, levels * spots)
    d.ask(
        f"A parking garage has {levels} levels with {spots} spots each. {cars} cars are parked there and {go} of them drive away. How many spots are free?",
        f"On each of the {levels} levels of a garage {spots} cars can park. Of the {cars} cars inside, {go} leave. How many more cars fit in now?",
    )
    s = levels * spots
    free = s - (cars - go)
    return [f"There are {mul(levels, spots)} spots.", f"There are {sub(cars, go)} cars.", f"That leaves {sub(s, cars - go)} spots."], free


def saving_goal(d):
    p = d.person()
    per, weeks, have = d.n(2, 12), d.n(2, 12), d.n(3, 40)
    goal = d.w("bike|drum|camera|skateboard")
    d.ask(
        f"{p} wants a {goal} that costs ${per * weeks + have}. {p.He} has ${have} and saves ${per} a week. After how many weeks can {p.he} buy the {goal}?",
        f"A {goal} costs {per * weeks + have} dollars. {p} already has {have} dollars and gets {per} dollars every week. How many weeks must {p.he} wait?",
    )
    return [f"{p} needs {sub(per * weeks + have, have)} dollars more.", f"That takes {div(per * weeks, per)} weeks."], weeks


def swimming(d):
    p, q = d.person(), d.person()
    length, a, b = d.n(20, 50, 5), d.n(2, 9), d.n(2, 9)
    d.ask(
        f"A pool is {length} meters long. {p} swims {a} lengths and {q} swims {b} lengths. How many meters do they swim together?",
        f"{p} swims the length of a pool {a} times, {q} swims it {b} times. The pool is {length} meters long. How many meters is that in all?",
    )
    return [f"Together they swim {add(a, b)} lengths.", f"That is {mul(length, a + b)} meters."], length * (a + b)


KINDS = [parking, saving_goal, swimming]
