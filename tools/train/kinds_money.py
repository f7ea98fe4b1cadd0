"""Kinds of problems about money. See draw.py; each function is one kind."""

from draw import add, div, mul, sub


def two_purchases(d):
    p, x, y = d.person(), d.anything(), d.anything()
    a, u, b, v = d.n(2, 12), d.n(2, 9), d.n(2, 12), d.n(2, 9)
    d.ask(
        f"{p} {d.w('buys|gets|picks up')} {d.c(a)} {x} at ${u} each and {d.c(b)} {y} at ${v} each. "
        f"How much {d.w('money does|does')} {p} spend {d.w('in all|in total|altogether')}?",
        f"At the {d.w('shop|store|market')}, {x} cost ${u} each and {y} cost ${v} each. {p} buys {d.c(a)} {x} and "
        f"{d.c(b)} {y}. How many dollars does {p.he} pay?",
        f"{p} needs {d.c(a)} {x} and {d.c(b)} {y}. Each of the {x} costs {u} dollars, and each of the {y} costs "
        f"{v} dollars. What is the total cost?",
        f"The price of {x} is ${u} apiece. The price of {y} is ${v} apiece. What will {p} pay for {d.c(a)} {x} and "
        f"{d.c(b)} {y}?",
        unseen=[
            f"For {p.his} cousins, {p} takes {a} {x} off the shelf, marked ${u} apiece, together with {b} {y} marked "
            f"${v} apiece. What does the cashier ask {p} to pay?",
        ])
    s = a * u + b * v
    return [f"The {x} cost {mul(a, u)} dollars.", f"The {y} cost {mul(b, v)} dollars.",
            f"Together that is {add(a * u, b * v)} dollars."], s


def change(d):
    p, x = d.person(), d.anything()
    a, u = d.n(2, 12), d.n(2, 8)
    bill = d.pick([b for b in (20, 50, 100) if b > a * u])
    d.ask(
        f"{p} buys {d.c(a)} {x} for ${u} each and pays with a ${bill} bill. How much change does {p.he} get{d.w('| back')}?",
        f"{x.capitalize()} cost {u} dollars each. {p} takes {d.c(a)} of them and gives the {d.w('clerk|seller|cashier')} "
        f"{bill} dollars. How many dollars does {p.he} get back?",
        f"{p} has ${bill}. {p.He} buys {d.c(a)} {x} that cost ${u} each. How much money {d.w('is left|does ' + p.he + ' have left')}?",
        f"With {bill} dollars in {p.his} pocket, {p} goes to the shop and pays for {d.c(a)} {x} at {u} dollars each. "
        f"How many dollars remain?",
        unseen=[
            f"{p} hands over ${bill} for {a} {x}. One of the {x} is sold for ${u}. How much comes back to {p}?",
        ])
    return [f"The {x} cost {mul(a, u)} dollars.", f"{p} has {sub(bill, a * u)} dollars left."], bill - a * u


def savings(d):
    p = d.person()
    a, k, x = d.n(5, 30), d.n(2, 12), d.n(5, 50)
    if x >= a * k:
        x = a * k - 1
    unit = d.w("week|month|day")
    goal = d.w("game|bike light|book|jacket|ball|gift")
    d.ask(
        f"{p} saves ${a} every {unit} for {d.c(k)} {unit}s. Then {p.he} spends ${x} on a {goal}. How much "
        f"{d.w('money does|does')} {p.he} have left?",
        f"Every {unit} {p} puts {a} dollars into {p.his} savings. After {d.c(k)} {unit}s {p.he} takes out {x} dollars for a "
        f"{goal}. How many dollars are still saved?",
        f"For {d.c(k)} {unit}s, {p} earned ${a} per {unit}. {p.He} used ${x} of it to buy a {goal}. How much is left?",
        f"{p} gets ${a} a {unit} and keeps all of it for {d.c(k)} {unit}s. A {goal} costs {p.him} ${x}. How much money "
        f"remains after that?",
        unseen=[
            f"A jar belongs to {p}. Each {unit} {a} dollars go into the jar, and {k} {unit}s pass. Then ${x} are taken "
            f"from the jar for a {goal}. What is in the jar now?",
        ])
    return [f"{p} saved {mul(a, k)} dollars.", f"After buying the {goal} {p.he} has {sub(a * k, x)} dollars."], a * k - x


def wages(d):
    p = d.person()
    rate, hours, days = d.n(6, 20), d.n(2, 8), d.n(2, 6)
    job = d.w("gardener|waiter|cashier|painter|driver|tutor|baker")
    d.ask(
        f"{p} works as a {job} and earns ${rate} an hour. {p.He} works {d.c(hours)} hours a day for {d.c(days)} days. How "
        f"much does {p.he} earn?",
        f"A {job} is paid {rate} dollars per hour. {p} does this job {d.c(hours)} hours each day. How many dollars "
        f"does {p.he} make in {d.c(days)} days?",
        f"{p} worked {d.c(days)} days as a {job}, {d.c(hours)} hours every day. Each hour paid ${rate}. What did {p} "
        f"earn {d.w('in all|in total|altogether')}?",
        f"For every hour of work, {p} gets ${rate}. If {p.he} works {d.c(hours)} hours on each of {d.c(days)} days, how much money "
        f"does {p.he} get?",
    )
    h = hours * days
    return [f"{p} works {mul(hours, days)} hours.", f"{p.He} earns {mul(rate, h)} dollars."], rate * h


def overtime(d):
    p = d.person()
    rate, hours, extra, more = d.n(8, 15), d.n(4, 9), d.n(2, 5), d.n(2, 5)
    d.ask(
        f"{p} earns ${rate} an hour, and ${more} more for each hour of overtime. Today {p.he} worked {d.c(hours)} normal "
        f"hours and {d.c(extra)} hours of overtime. How much did {p.he} earn today?",
        f"The normal pay is {rate} dollars per hour. Overtime pays {more} dollars more per hour. {p} worked {d.c(hours)} "
        f"hours at the normal pay and {d.c(extra)} hours overtime. How many dollars did {p.he} make?",
        f"{p} works {d.c(hours)} hours for ${rate} per hour and then {d.c(extra)} overtime hours, each paid ${more} better. "
        f"What is {p.his} pay?",
    )
    over = rate + more
    return [f"Normal hours pay {mul(hours, rate)} dollars.", f"An overtime hour pays {add(rate, more)} dollars.",
            f"Overtime pays {mul(extra, over)} dollars.",
            f"{p} earns {add(hours * rate, extra * over)} dollars."], hours * rate + extra * over


def unit_price(d):
    p, x = d.person(), d.anything()
    k, u, m = d.n(2, 9), d.n(2, 9), d.n(2, 12)
    if m == k:
        m += 1
    d.ask(
        f"{d.c(k).capitalize()} {x} cost ${k * u}. How much do {d.c(m)} {x} cost?",
        f"{p} paid {k * u} dollars for {d.c(k)} {x}. At the same price, how many dollars would {d.c(m)} {x} cost?",
        f"A {d.w('pack|bag|box')} of {d.c(k)} {x} sells for ${k * u}. {p} wants {d.c(m)} {x} at that rate. What will "
        f"{p.he} pay?",
        f"If {d.c(k)} {x} cost ${k * u}, what is the price of {d.c(m)} {x}?",
        unseen=[
            f"When {p} asked for {k} {x}, the seller wanted ${k * u}. {p} then asked for {m} {x} instead. What "
            f"does the seller want now?",
        ])
    return [f"One costs {div(k * u, k)} dollars.", f"{m} {x} cost {mul(m, u)} dollars."], m * u


def discount(d):
    p = d.person()
    percent = d.pick([10, 20, 25, 50])
    step = {10: 10, 20: 5, 25: 4, 50: 2}[percent]
    price = step * d.n(4, 24)
    part = 100 // percent
    goods = d.w("jacket|bag|lamp|chair|pair of shoes|tent|watch|table")
    d.ask(
        f"A {goods} costs ${price}. It is on sale for {percent}% off. How much does {p} pay for {d.w('it|the ' + goods)}?",
        f"{p} buys a {goods} with a {percent} percent discount. The {d.w('normal|usual|old')} price is {price} dollars. How many "
        f"dollars does {p.he} pay?",
        f"The price of a {goods} was ${price} before a discount of {percent}%. What is the new price?",
        f"{p} wants a {goods} for ${price}. The shop takes {percent}% off. What does {p.he} have to pay?",
        unseen=[
            f"On a {goods} the tag says ${price}, but today everything is {percent}% cheaper. What must {p} "
            f"hand over for it?",
        ])
    off = price // part
    return [f"The discount is {div(price, part)} dollars.", f"The price is {sub(price, off)} dollars."], price - off


def tip(d):
    p = d.person()
    percent = d.pick([10, 20, 25, 50])
    part = 100 // percent
    a = part * d.n(2, 12)
    b = part * d.n(1, 8)
    d.ask(
        f"At a restaurant {p} orders a meal for ${a} and a dessert for ${b}. {p.He} leaves a tip of {percent}%. How "
        f"much does {p.he} pay in all?",
        f"{p} eats for {a} dollars and drinks for {b} dollars. {p.He} adds a {percent} percent tip. How many dollars does "
        f"{p.he} pay {d.w('in total|altogether')}?",
        f"The food costs ${a} and the drinks cost ${b}. {p} pays that plus a tip of {percent}%. What does {p} pay?",
    )
    s = a + b
    return [f"The bill is {add(a, b)} dollars.", f"The tip is {div(s, part)} dollars.",
            f"{p} pays {add(s, s // part)} dollars."], s + s // part


def tickets(d):
    p = d.person()
    a, u, c, v = d.n(2, 12), d.n(6, 15), d.n(2, 12), d.n(2, 5)
    where = d.w("zoo|museum|cinema|circus|concert|fair|pool")
    d.ask(
        f"Tickets for the {where} cost ${u} for adults and ${v} for children. What do {d.c(a)} adults and {d.c(c)} children pay "
        f"{d.w('in all|in total|together')}?",
        f"{d.c(a).capitalize()} adults and {d.c(c)} children visit the {where}. An adult ticket costs {u} dollars and a child ticket "
        f"costs {v} dollars. How many dollars do all tickets cost?",
        f"{p} sells tickets at the {where}: ${u} for an adult, ${v} for a child. Today {p.he} sold {d.c(a)} adult tickets and "
        f"{d.c(c)} child tickets. How much money did {p.he} take in?",
        f"A group of {d.c(a)} adults and {d.c(c)} children goes to the {where}. Adults pay ${u} each and children pay ${v} each. "
        f"How much does the group pay?",
    )
    return [f"The adults pay {mul(a, u)} dollars.", f"The children pay {mul(c, v)} dollars.",
            f"Together they pay {add(a * u, c * v)} dollars."], a * u + c * v


def profit(d):
    p, x = d.person(), d.food()
    n, u, cost = d.n(6, 40), d.n(2, 6), d.n(5, 30)
    cost = min(cost, n * u - 1)
    d.ask(
        f"{p} bakes {n} {x} and sells them for ${u} each. The {d.w('ingredients|supplies')} cost ${cost}. What is {p.his} "
        f"profit?",
        f"{p} spent {cost} dollars to make {n} {x}. {p.He} sold all of them at {u} dollars each. How many dollars did "
        f"{p.he} {d.w('gain|earn after costs')}?",
        f"To make {n} {x}, {p} pays ${cost}. Each of the {x} is sold for ${u}. How much profit does {p.he} make?",
        f"{p} runs a stand and sells {n} {x} at ${u} each. Running the stand costs {p.him} ${cost}. How much money does "
        f"{p.he} make in the end?",
        unseen=[
            f"Before the fair {p} pays ${cost} for flour and sugar. At the fair all of {p.his} {n} {x} are gone by noon, "
            f"each for ${u}. How much richer is {p} at the end?",
        ])
    return [f"{p} takes in {mul(n, u)} dollars.", f"The profit is {sub(n * u, cost)} dollars."], n * u - cost


def coins(d):
    p = d.person()
    kinds = {"nickels": 5, "dimes": 10, "quarters": 25, "pennies": 1}
    x = d.pick(["nickels", "dimes", "quarters"])
    y = d.pick([k for k in kinds if k != x])
    a, b = d.n(2, 9), d.n(2, 9)
    d.ask(
        f"{p} has {d.c(a)} {x} and {d.c(b)} {y}. How many cents is that?",
        f"In {p.his} pocket {p} finds {d.c(a)} {x} and {d.c(b)} {y}. How many cents does {p.he} have {d.w('in all|altogether')}?",
        f"A jar holds {d.c(a)} {x} and {d.c(b)} {y}. How many cents are in the jar?",
        f"{p} pays with {d.c(a)} {x} and {d.c(b)} {y}. How many cents does {p.he} pay?",
    )
    u, v = kinds[x], kinds[y]
    return [f"The {x} are {mul(a, u)} cents.", f"The {y} are {mul(b, v)} cents.",
            f"Together that is {add(a * u, b * v)} cents."], a * u + b * v


def budget(d):
    p, x, y = d.person(), d.anything(), d.anything()
    a, b, c = d.n(3, 40), d.n(3, 40), d.n(3, 30)
    have = a + b + c + d.n(1, 60)
    extra = d.w("lunch|a bus ticket|a book|a haircut|a movie")
    d.ask(
        f"{p} has ${have}. {p.He} spends ${a} on {x}, ${b} on {y} and ${c} on {extra}. How much "
        f"{d.w('money does|does')} {p.he} have left?",
        f"{p} went shopping with {have} dollars. The {x} cost {a} dollars, the {y} cost {b} dollars, and {p.he} paid {c} "
        f"dollars for {extra}. How many dollars were left?",
        f"Out of ${have}, {p} uses ${a} for {x} and ${b} for {y}. After that {p.he} pays ${c} for {extra}. How much is left?",
    )
    s = a + b + c
    return [f"{p} spends {add(a, b, c)} dollars.", f"{p.He} has {sub(have, s)} dollars left."], have - s


def split_bill(d):
    p = d.person()
    k = d.n(2, 6)
    each = d.n(4, 30)
    a = d.n(3, max(3, k * each - 3))
    b = k * each - a
    d.ask(
        f"{p} and {d.c(k - 1)} {d.w('friend' if k == 2 else 'friends')} share a bill equally. The food costs ${a} and the drinks cost "
        f"${b}. How much does each {d.w('person|of them')} pay?",
        f"{d.c(k).capitalize()} friends rent a boat for {a} dollars and buy a picnic for {b} dollars. They split the cost evenly. "
        f"How many dollars does each friend pay?",
        f"A gift costs ${a} and its wrapping and delivery cost ${b}. {d.c(k).capitalize()} people share the whole cost equally. What does each one pay?",
    )
    return [f"The whole cost is {add(a, b)} dollars.", f"Split among {k} people, each pays {div(a + b, k)} dollars."], each


def coupon(d):
    p, x = d.person(), d.anything()
    a, u, off, k = d.n(3, 12), d.n(3, 12), d.n(2, 9), d.n(2, 9)
    ship = k
    d.ask(
        f"{p} orders {d.c(a)} {x} online at ${u} each. A coupon takes ${off} off the order, and delivery costs ${ship}. How "
        f"much does {p.he} pay?",
        f"{x.capitalize()} cost ${u} each. {p} orders {d.c(a)} of them, uses a coupon for ${off}, and pays ${ship} for shipping. "
        f"What is the final cost?",
        f"An order of {d.c(a)} {x} at {u} dollars each gets {off} dollars off because {p} has a coupon. Then {ship} dollars "
        f"are added for delivery. How many dollars does {p} pay?",
    )
    s = a * u
    return [f"The {x} cost {mul(a, u)} dollars.", f"With the coupon that is {sub(s, off)} dollars.",
            f"With delivery {p} pays {add(s - off, ship)} dollars."], s - off + ship


KINDS = [two_purchases, change, savings, wages, overtime, unit_price, discount, tip, tickets, profit, coins, budget,
         split_bill, coupon]
