"""Kinds of problems about lengths, times, ages and rates. See draw.py; each function is one kind."""

from draw import add, div, mul, sub


def two_legs(d):
    p = d.person()
    a, t, b, u = d.n(3, 60), d.n(2, 6), d.n(3, 60), d.n(2, 6)
    unit = d.w("miles|kilometers")
    how = d.w("rides|drives|travels|cycles")
    d.ask(
        f"{p} {how} {d.c(t)} hours at {a} {unit} per hour and then {d.c(u)} hours at {b} {unit} per hour. How many {unit} does {p.he} go "
        f"{d.w('in all|in total|altogether')}?",
        f"For {d.c(t)} hours {p} {how} at a speed of {a} {unit} an hour. After a break {p.he} goes on for {d.c(u)} hours at {b} {unit} an hour. How far does "
        f"{p.he} get, in {unit}?",
        f"{p} makes a trip in two parts. The first part takes {d.c(t)} hours at {a} {unit} per hour, the second part takes {d.c(u)} hours at {b} {unit} per hour. "
        f"How long is the trip in {unit}?",
        unseen=[
            f"The clock shows {d.c(t)} hours of going {a} {unit} each hour when {p} stops to rest. Then come {d.c(u)} more hours, {b} {unit} in each. What distance "
            f"lies behind {p}, in {unit}?",
        ])
    return [f"The first part is {mul(a, t)} {unit}.", f"The second part is {mul(b, u)} {unit}.",
            f"In all that is {add(a * t, b * u)} {unit}."], a * t + b * u


def distance_left(d):
    p = d.person()
    v, t = d.n(8, 70), d.n(2, 7)
    total = v * t + d.n(5, 95)
    unit = d.w("miles|kilometers")
    d.ask(
        f"{p} has to drive {total} {unit}. {p.He} has driven {d.c(t)} hours at {v} {unit} per hour. How many {unit} are left?",
        f"The way to the {d.place()} is {total} {unit}. {p} goes {v} {unit} every hour. How many {unit} remain after {d.c(t)} hours?",
        f"A trip is {total} {unit} long. After {d.c(t)} hours at {v} {unit} an hour, how far does {p} still have to go?",
    )
    return [f"{p} has gone {mul(v, t)} {unit}.", f"There are {sub(total, v * t)} {unit} left."], total - v * t


def perimeter(d):
    p = d.person()
    a, b, u = d.n(4, 40), d.n(3, 30), d.n(2, 9)
    what = d.w("garden|field|yard|park|playground")
    unit = d.w("meters|feet|yards")
    one = {"meters": "meter", "feet": "foot", "yards": "yard"}[unit]
    d.ask(
        f"A rectangular {what} is {a} {unit} long and {b} {unit} wide. A fence costs ${u} per {one}. How much does a fence around the {what} cost?",
        f"{p} puts a fence around a {what} that is {a} {unit} by {b} {unit}. Each {one} of fence costs {u} dollars. How many dollars does {p.he} pay?",
        f"The {what} of {p} is a rectangle, {a} {unit} long and {b} {unit} wide. What does it cost to fence it in at ${u} a {one}?",
    )
    half = a + b
    return [f"Length and width are {add(a, b)} {unit}.", f"All around it is {mul(half, 2)} {unit}.",
            f"The fence costs {mul(2 * half, u)} dollars."], 2 * half * u


def area(d):
    p = d.person()
    a, b, u = d.n(3, 20), d.n(2, 12), d.n(2, 9)
    what = d.w("floor|wall|terrace|room")
    unit, square = d.pick([("meters", "square meter"), ("feet", "square foot"), ("yards", "square yard")])
    work = d.w("tiles|paint|carpet")
    cost = {"tiles": "Tiles cost", "paint": "Paint costs", "carpet": "Carpet costs"}[work]
    d.ask(
        f"A {what} is {a} {unit} long and {b} {unit} wide. {cost} ${u} per {square}. How much does {p} pay for the whole {what}?",
        f"{p} covers a {what} of {a} by {b} {unit} with {work}. One {square} costs {u} dollars. How many dollars does {p.he} spend?",
        f"For a {what} that measures {a} {unit} by {b} {unit}, {p} buys {work} at ${u} a {square}. What is the cost?",
        unseen=[
            f"{p} wants new {work} everywhere on a {what}. It is {b} {unit} wide and {a} {unit} long, and a {square} comes at ${u}. What must {p} pay?",
        ])
    return [f"The area is {mul(a, b)}.", f"The cost is {mul(a * b, u)} dollars."], a * b * u


def ages_future(d):
    p, q = d.person(), d.person()
    a, b, k = d.n(4, 40), d.n(2, 25), d.n(2, 15)
    d.ask(
        f"{p} is {a} years old. {q} is {b} years older than {p}. How old will {q} be in {d.c(k)} years?",
        f"{q} is {b} years older than {p}, who is {a}. What will be the age of {q} after {d.c(k)} years?",
        f"{p} is {a} and {q} is {b} years older. In {d.c(k)} years, how old will {q} be?",
        unseen=[
            f"{p} just turned {a}. {q} was born {b} years before {p}. When {d.c(k)} years have gone by, how many candles will be on the cake of {q}?",
        ])
    return [f"{q} is {add(a, b)} years old.", f"In {k} years {q} will be {add(a + b, k)} years old."], a + b + k


def ages_sum(d):
    p, q = d.person(), d.person()
    a, k, years = d.n(4, 15), d.n(2, 5), d.n(2, 12)
    times = {2: "twice", 3: "three times"}.get(k, f"{d.c(k)} times")
    d.ask(
        f"{p} is {a} years old and {q} is {times} as old. What will be the sum of their ages in {d.c(years)} years?",
        f"{q} is {times} as old as {p}. {p} is {a} years old. How old will they be together in {d.c(years)} years?",
        f"The age of {p} is {a}. The age of {q} is {times} that. {d.c(years).capitalize()} years from now, what do their ages add up to?",
    )
    b = a * k
    return [f"{q} is {mul(a, k)} years old.", f"In {years} years {p} will be {add(a, years)}.", f"In {years} years {q} will be {add(b, years)}.",
            f"Together that is {add(a + years, b + years)}."], a + b + 2 * years


def ages_past(d):
    p, q = d.person(), d.person()
    a = d.n(15, 60)
    b, k = d.n(2, 8), d.n(2, 6)
    d.ask(
        f"{p} is {a} years old. {q} is {b} years younger. How old was {q} {d.c(k)} years ago?",
        f"{q} is {b} years younger than {p}, who is {a}. What was the age of {q} {d.c(k)} years ago?",
        f"{p} is {a} now, and {q} is {b} years younger than {p}. {d.c(k).capitalize()} years ago, how old was {q}?",
    )
    return [f"{q} is {sub(a, b)} years old.", f"{k} years ago {q} was {sub(a - b, k)}."], a - b - k


def recipe(d):
    p = d.person()
    k, n, m = d.n(2, 6), d.n(2, 5), d.n(2, 6)
    s = d.n(2, 9)
    what = d.w("flour|sugar|milk|rice|oats")
    dish = d.w("pancakes|soup|pudding|bread|cake")
    d.ask(
        f"A recipe for {d.c(k)} people needs {d.c(k * n) if k * n <= 12 else k * n} cups of {what}. {p} cooks for {k * m} people and adds {d.c(s)} extra cups. How many cups of {what} does "
        f"{p.he} use?",
        f"{p} makes {dish}. For {d.c(k)} people it takes {k * n} cups of {what}. {p.He} makes it for {k * m} people and spills {d.c(s)} more cups. How many cups are used in all?",
        f"To make {dish} for {d.c(k)} people, {k * n} cups of {what} are needed. {p} needs enough for {k * m} people, and {d.c(s)} cups more to be safe. How many cups does "
        f"{p.he} need?",
    )
    people = k * m
    return [f"One person needs {div(k * n, k)} cups.", f"{people} people need {mul(people, n)} cups.",
            f"With the extra cups that is {add(people * n, s)} cups."], people * n + s


def minutes(d):
    p = d.person()
    h, a, b = d.n(1, 5), d.n(5, 55), d.n(5, 55)
    hours = "1 hour" if h == 1 else f"{d.c(h)} hours"
    one, two, three = d.pick([("reads", "walks", "draws"), ("sleeps", "plays", "cooks"), ("studies", "swims", "paints")])
    d.ask(
        f"{p} {one} for {hours}, {two} for {a} minutes and {three} for {b} minutes. How many minutes is that {d.w('in all|in total|altogether')}?",
        f"On {d.day()} {p} {one} {hours}. Then {p.he} {two} {a} minutes and {three} {b} minutes. How many minutes does {p.he} spend on all of it?",
        f"{p} spends {hours} on one thing, {a} minutes on another and {b} minutes on a third. What is the total time in minutes?",
    )
    return [f"The hours are {mul(h, 60)} minutes.", f"In all that is {add(h * 60, a, b)} minutes."], h * 60 + a + b


def weekly_minutes(d):
    p = d.person()
    a, b, days = d.n(5, 45), d.n(5, 45), d.n(2, 7)
    one, two = d.pick([("the piano", "the flute"), ("math", "spelling"), ("running", "jumping"), ("drawing", "singing")])
    d.ask(
        f"Every day {p} practices {one} for {a} minutes and {two} for {b} minutes. How many minutes does {p.he} practice in {d.c(days)} days?",
        f"{p} practices {a} minutes of {one} and {b} minutes of {two} each day. How many minutes is that in {d.c(days)} days?",
        f"For {d.c(days)} days, {p} spent {a} minutes on {one} and {b} minutes on {two} every day. How many minutes did {p.he} spend in total?",
    )
    return [f"Each day it is {add(a, b)} minutes.", f"In {days} days that is {mul(a + b, days)} minutes."], (a + b) * days


def tank(d):
    a, t = d.n(8, 30), d.n(3, 12)
    b, u = d.n(2, 7), d.n(2, 9)
    what = d.w("tank|pool|barrel|pond")
    unit = d.w("liters|gallons")
    if b * u >= a * t:
        u = 2
    d.ask(
        f"A {what} is filled with {a} {unit} of water a minute for {d.c(t)} minutes. Then it loses {b} {unit} a minute for {d.c(u)} minutes. How many {unit} are in the {what}?",
        f"Water flows into an empty {what} at {a} {unit} per minute. After {d.c(t)} minutes the tap is closed, and {b} {unit} per minute leak out for {d.c(u)} minutes. How "
        f"many {unit} are left?",
        f"For {d.c(t)} minutes a pump puts {a} {unit} a minute into a {what}. After that {b} {unit} a minute are taken out for {d.c(u)} minutes. How much water is there, in {unit}?",
    )
    return [f"First {mul(a, t)} {unit} flow in.", f"Then {mul(b, u)} {unit} flow out.",
            f"There are {sub(a * t, b * u)} {unit}."], a * t - b * u


def rope(d):
    p = d.person()
    k, n, used = d.n(2, 12), d.n(2, 12), d.n(2, 30)
    what = d.w("rope|ribbon|wire|string|cable")
    unit = d.w("meters|feet|inches")
    d.ask(
        f"{p} has {k * n + used} {unit} of {what}. {p.He} uses {used} {unit} and cuts the rest into pieces of {d.c(k)} {unit}. How many pieces are there?",
        f"A {what} is {k * n + used} {unit} long. {used} {unit} are cut off first. {p} cuts what is left into pieces, each {d.c(k)} {unit} long. How many pieces does {p.he} get?",
        f"From {k * n + used} {unit} of {what}, {p} gives {used} {unit} away. How many pieces of {d.c(k)} {unit} can {p.he} cut from the remaining {what}?",
    )
    return [f"There are {sub(k * n + used, used)} {unit} left.", f"That gives {div(k * n, k)} pieces."], n


def stairs(d):
    p = d.person()
    floors, k, n = d.n(2, 12), d.n(8, 20), d.n(2, 5)
    d.ask(
        f"A {d.w('tower|house|building')} has {d.c(floors)} floors with {k} steps each. {p} climbs to the top {d.c(n)} times. How many steps does {p.he} climb?",
        f"{p} walks up {d.c(floors)} floors {d.c(n)} times a day. Each floor has {k} steps. How many steps is that a day?",
        f"There are {k} steps on every one of {d.c(floors)} floors. How many steps does {p} climb if {p.he} goes all the way up {d.c(n)} times?",
    )
    s = floors * k
    return [f"To the top there are {mul(floors, k)} steps.", f"In all {p} climbs {mul(s, n)} steps."], s * n


def supply(d):
    p = d.person()
    people, each, days = d.n(2, 6), d.n(2, 4), d.n(2, 12)
    per = people * each
    what, unit = d.pick([("water", "bottles of water"), ("food", "cans of food"), ("milk", "cartons of milk"), ("bread", "rolls")])
    d.ask(
        f"{d.c(people).capitalize()} {d.w('hikers|campers|sailors')} each use {d.c(each)} {unit} a day. They have {per * days} {unit}. How many days will that last?",
        f"{p} has {per * days} {unit} for {d.c(people)} people. Each person uses {d.c(each)} a day. For how many days is that enough?",
        f"A group of {d.c(people)} has packed {per * days} {unit}. Everyone needs {d.c(each)} per day. After how many days is nothing left?",
    )
    return [f"Each day they use {mul(people, each)}.", f"It lasts {div(per * days, per)} days."], days


def burning(d):
    k, t = d.n(2, 6), d.n(2, 9)
    start = k * t + d.n(2, 40)
    thing, loses, unit = d.pick([("candle", "burns down", "centimeters"), ("block of ice", "melts", "centimeters"), ("pile of sand", "shrinks", "inches")])
    d.ask(
        f"A {thing} is {start} {unit} tall. It {loses} {d.c(k)} {unit} every hour. How tall is it after {d.c(t)} hours?",
        f"Every hour a {thing} {loses} {d.c(k)} {unit}. At first it was {start} {unit} tall. What is its height after {d.c(t)} hours, in {unit}?",
        f"A {thing} of {start} {unit} {loses} by {d.c(k)} {unit} an hour. How many {unit} are left after {d.c(t)} hours?",
    )
    return [f"In {t} hours it loses {mul(k, t)} {unit}.", f"It is then {sub(start, k * t)} {unit} tall."], start - k * t


def work_together(d):
    p, q, x = d.person(), d.person(), d.anything()
    a, b, t = d.n(3, 25), d.n(3, 25), d.n(2, 9)
    have = d.n(2, 30)
    verb = d.w("packs|makes|sorts|paints|washes")
    d.ask(
        f"{p} {verb} {a} {x} an hour and {q} {verb} {b} {x} an hour. They work together for {d.c(t)} hours. {have} {x} were ready before. How many are ready then?",
        f"In one hour {p} {verb} {a} {x} and {q} {verb} {b}. {have} {x} were done already. How many {x} are done after {d.c(t)} hours of both working?",
        f"{have} {x} are finished. Now {p} {verb} {a} more every hour and {q} {verb} {b} more every hour. How many {x} are finished after {d.c(t)} hours?",
    )
    s = a + b
    return [f"Together they do {add(a, b)} an hour.", f"In {t} hours that is {mul(s, t)} {x}.",
            f"With the first ones there are {add(s * t, have)} {x}."], s * t + have


def temperature(d):
    a = d.n(10, 30)
    up, down = d.n(2, 15), d.n(2, 12)
    town = d.w("the city|the village|the desert|the valley|the mountains")
    d.ask(
        f"In the morning it was {a} degrees in {town}. By noon it was {up} degrees warmer. In the evening it fell by {down} degrees. What was the temperature in the evening?",
        f"The thermometer in {town} shows {a} degrees at first. It rises {up} degrees and then drops {down} degrees. What does it show now?",
        f"It is {a} degrees in {town}. The temperature goes up by {up} degrees, then down by {down} degrees. How many degrees is it then?",
    )
    return [f"At its warmest it was {add(a, up)} degrees.", f"Then it was {sub(a + up, down)} degrees."], a + up - down


def weights(d):
    p, x, y = d.person(), d.anything(), d.anything()
    a, u, b, v, box = d.n(2, 12), d.n(2, 12), d.n(2, 12), d.n(2, 12), d.n(2, 30)
    unit = d.w("grams|pounds|ounces")
    d.ask(
        f"{p} packs {d.c(a)} {x} of {u} {unit} each and {d.c(b)} {y} of {v} {unit} each into a box. The empty box weighs {box} {unit}. What is the total weight in {unit}?",
        f"A box weighs {box} {unit}. {p} puts in {d.c(a)} {x}, each {u} {unit}, and {d.c(b)} {y}, each {v} {unit}. How many {unit} does the full box weigh?",
        f"Each of the {x} weighs {u} {unit} and each of the {y} weighs {v} {unit}. How heavy, in {unit}, are {d.c(a)} {x} and {d.c(b)} {y} in a box of {box} {unit}?",
    )
    return [f"The {x} weigh {mul(a, u)} {unit}.", f"The {y} weigh {mul(b, v)} {unit}.",
            f"With the box that is {add(a * u, b * v, box)} {unit}."], a * u + b * v + box


KINDS = [two_legs, distance_left, perimeter, area, ages_future, ages_sum, ages_past, recipe, minutes, weekly_minutes, tank, rope, stairs,
         supply, burning, work_together, temperature, weights]
